// FlashInfer's one-shot all-reduce + residual + RMSNorm kernel, launched on one GPU.
//
// The kernel is the template of the installed header, compiled as it is. It runs as rank 0 of two
// on one ordinary buffer, which stands for the multicast pointer too: no multicast object, no
// second GPU, no FlashInfer workspace. What rank 1 would send is put into the buffer before each
// launch. Each row that comes out is compared with a sum on the host.
//
// usage: kernel TOKENS LAUNCHES
// exit: 0 all rows right, 1 a wrong row, 2 CUDA or usage error

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "flashinfer/comm/trtllm_mnnvl_allreduce.cuh"

namespace ar = flashinfer::trtllm_mnnvl_allreduce;
using T = __nv_bfloat16;

constexpr int kRanks = 2;
constexpr int kHidden = 7168;
constexpr int kBuffers = 3;  // the kernel takes them in turn
constexpr float kEpsilon = 1e-6f;

#define CHECK(call)                                                              \
  do {                                                                           \
    cudaError_t status = (call);                                                 \
    if (status != cudaSuccess) {                                                 \
      std::printf("cuda error: %s in %s\n", cudaGetErrorString(status), #call);  \
      std::exit(2);                                                              \
    }                                                                            \
  } while (0)

std::vector<T> values(size_t count, unsigned seed) {
  std::vector<T> out(count);
  for (T& value : out) {
    seed = seed * 1664525u + 1013904223u;
    value = __float2bfloat16(static_cast<float>(seed >> 16) / 32768.0f - 1.0f);
  }
  return out;
}

template <typename V>
V* on_device(std::vector<V> const& host) {
  V* device = nullptr;
  CHECK(cudaMalloc(&device, host.size() * sizeof(V)));
  CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(V), cudaMemcpyHostToDevice));
  return device;
}

int wrong_rows(std::vector<T> const& out, std::vector<T> const& own, std::vector<T> const& peer,
               std::vector<T> const& residual, int tokens) {
  int wrong = 0;
  for (int token = 0; token < tokens; ++token) {
    std::vector<float> sum(kHidden);
    double squares = 0;
    for (int i = 0; i < kHidden; ++i) {
      size_t at = static_cast<size_t>(token) * kHidden + i;
      sum[i] = __bfloat162float(own[at]) + __bfloat162float(peer[at]) +
               __bfloat162float(residual[at]);
      squares += sum[i] * sum[i];
    }
    double scale = 1.0 / std::sqrt(squares / kHidden + kEpsilon), difference = 0, norm = 0;
    for (int i = 0; i < kHidden; ++i) {
      double expected = sum[i] * scale;
      double found = __bfloat162float(out[static_cast<size_t>(token) * kHidden + i]);
      difference += (found - expected) * (found - expected);
      norm += expected * expected;
    }
    // Three roundings to bfloat16 stay below it; a missing block's sum does not.
    wrong += !(std::sqrt(difference / norm) < 1e-2);
  }
  return wrong;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::printf("usage: kernel TOKENS LAUNCHES\n");
    return 2;
  }
  int const tokens = std::atoi(argv[1]), launches = std::atoi(argv[2]);
  size_t const count = static_cast<size_t>(tokens) * kHidden;
  std::vector<T> own = values(count, 1), peer = values(count, 2), residual = values(count, 3);
  std::vector<T> out(count), gamma(kHidden, __float2bfloat16(1.0f));

  // The buffer holds -0.0 wherever nothing has arrived.
  std::vector<uint16_t> empty(count * kRanks * kBuffers, 0x8000);
  T* buffer = reinterpret_cast<T*>(on_device(empty));
  T* peers[] = {buffer, buffer};
  uint32_t const bytes = count * kRanks * sizeof(T);
  uint32_t* flags = on_device(std::vector<uint32_t>{0, 2, bytes, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  T* peer_rows = on_device(peer);

  ar::AllReduceKernelParams<T> params{};
  params.outputPtr = on_device(out);
  params.prenormedPtr = on_device(out);
  params.shardPtr = on_device(own);
  params.residualInPtr = on_device(residual);
  params.gammaPtr = on_device(gamma);
  params.inputPtrs = on_device(std::vector<T*>(peers, peers + kRanks));
  params.mcastPtr = buffer;
  params.localBufferPtr = buffer;
  params.nRanks = kRanks;
  params.numTokens = tokens;
  params.tokenDim = kHidden;
  params.epsilon = kEpsilon;
  params.bufferFlags = flags;

  auto [block, cluster, loads] =
      ar::utils::adjustGridConfig(tokens, kHidden, sizeof(float4) / sizeof(T), true);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1;
  attribute.val.clusterDim.y = cluster;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(tokens, cluster, 1);
  config.blockDim = dim3(block, 1, 1);
  config.attrs = &attribute;
  config.numAttrs = 1;
  std::printf("cluster=%d block=%d\n", cluster, block);
  std::fflush(stdout);

  size_t const row = kHidden * sizeof(T);
  int wrong = 0;
  for (int launch = 0; launch < launches; ++launch) {
    T* current = buffer + count * kRanks * (launch % kBuffers);
    CHECK(cudaMemcpy2D(current + kHidden, row * kRanks, peer_rows, row, row, tokens,
                       cudaMemcpyDeviceToDevice));
    CHECK(cudaLaunchKernelEx(&config, &ar::oneshotAllreduceFusionKernel<kRanks, T, true>, params));
    CHECK(cudaMemcpy(out.data(), params.outputPtr, count * sizeof(T), cudaMemcpyDeviceToHost));
    wrong += launch < 3 || launch % 1000 == 0 ? wrong_rows(out, own, peer, residual, tokens) : 0;
  }
  std::printf("launches=%d wrong_rows=%d\n", launches, wrong);
  return wrong ? 1 : 0;
}
