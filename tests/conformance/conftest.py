import pytest

from tests.conformance.jobs import Results, results_of


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Results:
    return results_of(request.param)
