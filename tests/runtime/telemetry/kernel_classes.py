"""The FlashInfer releases that are read, and the class of their kernel."""

CLASSES = {
    "0.6.10": "waits",
    "0.6.12": "waits",
    "0.6.13": "races",
    "0.6.18.post1": "races",
    "0.7.0.post1": "races",
    "0.7.2.post1": "races",
    "0.7.4": "waits",
}
