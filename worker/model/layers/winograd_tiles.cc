#include "worker/model/layers/winograd_tiles.h"

// One function for each instruction set, chosen when the program starts.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define DDPRUN_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DDPRUN_FOR_EACH_CPU
#endif
#define DDPRUN_INLINE inline __attribute__((always_inline))

namespace ddprun {
namespace {

// Compiled to registers of whatever size the instruction set has. Memory need not be aligned.
using Lanes = float __attribute__((vector_size(kWinogradLanes * sizeof(float)), aligned(4)));

// In one dimension; `s`: distance between the numbers.
struct InputMap {  // Bᵀ
  static constexpr int kIn = 4, kOut = 4;
  static DDPRUN_INLINE void Apply(const Lanes* d, int s, Lanes* out, int t) {
    out[0] = d[0] - d[2 * s];
    out[t] = d[s] + d[2 * s];
    out[2 * t] = d[2 * s] - d[s];
    out[3 * t] = d[s] - d[3 * s];
  }
};
struct InputGradientMap {  // B
  static constexpr int kIn = 4, kOut = 4;
  static DDPRUN_INLINE void Apply(const Lanes* v, int s, Lanes* out, int t) {
    out[0] = v[0];
    out[t] = v[s] - v[2 * s] + v[3 * s];
    out[2 * t] = v[s] + v[2 * s] - v[0];
    out[3 * t] = -v[3 * s];
  }
};
struct OutputMap {  // Aᵀ
  static constexpr int kIn = 4, kOut = 2;
  static DDPRUN_INLINE void Apply(const Lanes* m, int s, Lanes* out, int t) {
    out[0] = m[0] + m[s] + m[2 * s];
    out[t] = m[s] - m[2 * s] - m[3 * s];
  }
};
struct OutputGradientMap {  // A
  static constexpr int kIn = 2, kOut = 4;
  static DDPRUN_INLINE void Apply(const Lanes* g, int s, Lanes* out, int t) {
    out[0] = g[0];
    out[t] = g[0] + g[s];
    out[2 * t] = g[0] - g[s];
    out[3 * t] = -g[s];
  }
};
struct KernelMap {  // G
  static constexpr int kIn = 3, kOut = 4;
  static DDPRUN_INLINE void Apply(const Lanes* g, int s, Lanes* out, int t) {
    const Lanes ends = g[0] + g[2 * s];
    out[0] = g[0];
    out[t] = (ends + g[s]) * 0.5F;
    out[2 * t] = (ends - g[s]) * 0.5F;
    out[3 * t] = g[2 * s];
  }
};
struct KernelGradientMap {  // Gᵀ
  static constexpr int kIn = 4, kOut = 3;
  static DDPRUN_INLINE void Apply(const Lanes* u, int s, Lanes* out, int t) {
    const Lanes half = (u[s] + u[2 * s]) * 0.5F;
    out[0] = u[0] + half;
    out[t] = (u[s] - u[2 * s]) * 0.5F;
    out[2 * t] = half + u[3 * s];
  }
};

// Columns, then rows.
template <typename Map>
DDPRUN_INLINE void ApplyTwice(const Lanes* in, Lanes* out) {
  Lanes columns[Map::kOut * Map::kIn];
  for (int j = 0; j < Map::kIn; ++j) Map::Apply(in + j, Map::kIn, columns + j, Map::kIn);
  for (int i = 0; i < Map::kOut; ++i) Map::Apply(columns + i * Map::kIn, 1, out + i * Map::kOut, 1);
}

// Not by value: a function that returns such a vector has another ABI for each instruction set.
DDPRUN_INLINE const Lanes& At(const float* at) {
  return *reinterpret_cast<const Lanes*>(at);
}
DDPRUN_INLINE Lanes& At(float* at) {
  return *reinterpret_cast<Lanes*>(at);
}

template <typename Map>
DDPRUN_INLINE void FromPixels(const float* const* pixels, TilePoints points, int64_t channels) {
  for (int64_t c = 0; c < channels; c += kWinogradLanes) {
    Lanes in[Map::kIn * Map::kIn];
    Lanes out[Map::kOut * Map::kOut];
    for (int k = 0; k < Map::kIn * Map::kIn; ++k) in[k] = At(pixels[k] + c);
    ApplyTwice<Map>(in, out);
    for (int k = 0; k < Map::kOut * Map::kOut; ++k)
      At(points.data + k * points.stride + c) = out[k];
  }
}

template <typename Map, bool kAdd>
DDPRUN_INLINE void ToPixels(TilePoints points, float* const* pixels, int64_t channels) {
  for (int64_t c = 0; c < channels; c += kWinogradLanes) {
    Lanes in[Map::kIn * Map::kIn];
    Lanes out[Map::kOut * Map::kOut];
    for (int k = 0; k < Map::kIn * Map::kIn; ++k) in[k] = At(points.data + k * points.stride + c);
    ApplyTwice<Map>(in, out);
    for (int k = 0; k < Map::kOut * Map::kOut; ++k) {
      Lanes& pixel = At(pixels[k] + c);
      if (kAdd) {
        pixel += out[k];
      } else {
        pixel = out[k];
      }
    }
  }
}

}  // namespace

DDPRUN_FOR_EACH_CPU void TransformInput(const float* const* pixels, TilePoints points,
                                        int64_t channels) {
  FromPixels<InputMap>(pixels, points, channels);
}

DDPRUN_FOR_EACH_CPU void TransformOutput(TilePoints points, float* const* pixels,
                                         int64_t channels) {
  ToPixels<OutputMap, false>(points, pixels, channels);
}

DDPRUN_FOR_EACH_CPU void TransformOutputGradient(const float* const* pixels, TilePoints points,
                                                 int64_t channels) {
  FromPixels<OutputGradientMap>(pixels, points, channels);
}

DDPRUN_FOR_EACH_CPU void AddInputGradient(TilePoints points, float* const* pixels,
                                          int64_t channels) {
  ToPixels<InputGradientMap, true>(points, pixels, channels);
}

DDPRUN_FOR_EACH_CPU void TransformKernel(const float* const* places, TilePoints points,
                                         int64_t channels) {
  FromPixels<KernelMap>(places, points, channels);
}

DDPRUN_FOR_EACH_CPU void TransformKernelGradient(TilePoints points, float* const* places,
                                                 int64_t channels) {
  ToPixels<KernelGradientMap, false>(points, places, channels);
}

}  // namespace ddprun
