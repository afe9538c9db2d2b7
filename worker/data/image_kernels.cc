#include "worker/data/image_kernels.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddprun {
namespace {

// Weights are never negative and add up to 1 within a few units of the last bit, so a sum of bytes,
// rounded, lies between 0 and 255 and needs no clamp.
constexpr int32_t kHalf = 1 << (kResampleBits - 1);

void ScaleRowPlain(const uint8_t* in, const RowWeights& row, uint8_t* out, int step) {
  const int32_t* weights = row.weights;
  for (int x = 0; x < row.count; ++x, out += step) {
    const uint8_t* pixels = in + row.offsets[x];
    int32_t sums[4] = {kHalf, kHalf, kHalf, kHalf};
    for (int tap = 0; tap < row.pairs * 2; ++tap, pixels += 4, weights += 4) {
      for (int channel = 0; channel < 4; ++channel) {
        sums[channel] += pixels[channel] * weights[channel];
      }
    }
    for (int channel = 0; channel < 4; ++channel) {
      out[channel] = static_cast<uint8_t>(sums[channel] >> kResampleBits);
    }
  }
}

void ScaleColumnPlain(const uint8_t* in, size_t stride, const int32_t* weights, int taps, int bytes,
                      uint8_t* out) {
  for (int x = 0; x < bytes; x += kColumnBlockBytes) {
    int32_t sums[kColumnBlockBytes];
    for (int32_t& sum : sums) sum = kHalf;
    const uint8_t* line = in + x;
    for (int tap = 0; tap < taps; ++tap, line += stride) {
      for (int i = 0; i < kColumnBlockBytes; ++i) sums[i] += line[i] * weights[tap];
    }
    for (int i = 0; i < kColumnBlockBytes; ++i) {
      out[x + i] = static_cast<uint8_t>(sums[i] >> kResampleBits);
    }
  }
}

void ToPlanesPlain(const uint8_t* in, int count, const ChannelScale& scale, ptrdiff_t plane,
                   float* out) {
  for (size_t channel = 0; channel < 3; ++channel, out += plane) {
    for (int x = 0; x < count; ++x) {
      const auto value = static_cast<float>(in[static_cast<size_t>(x) * 4 + channel]);
      out[x] = (value / 255.0F - scale.mean[channel]) / scale.deviation[channel];
    }
  }
}

#if defined(__x86_64__)

#define DDPRUN_AVX2 __attribute__((target("avx2")))

DDPRUN_AVX2 inline __m256i Load8(const uint8_t* bytes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}
DDPRUN_AVX2 inline __m256i LoadWeights(const int32_t* weights) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
}

// `kPairs` = 0: as many as the row says. Usual numbers have their loop unrolled.
template <int kPairs>
DDPRUN_AVX2 inline void ScaleRowPairs(const uint8_t* in, const RowWeights& row, uint8_t* out,
                                      int step) {
  const __m128i half = _mm_set1_epi32(kHalf);
  const __m128i low_bytes = _mm_set1_epi32(0x0c080400);
  const int pairs = kPairs > 0 ? kPairs : row.pairs;
  const int32_t* weights = row.weights;
  for (int x = 0; x < row.count; ++x, out += step, weights += pairs * 8) {
    const uint8_t* const pixels = in + row.offsets[x];
    __m256i sum = _mm256_mullo_epi32(Load8(pixels), LoadWeights(weights));
    for (int pair = 1; pair < pairs; ++pair) {
      const __m256i more =
          _mm256_mullo_epi32(Load8(pixels + pair * 8), LoadWeights(weights + pair * 8));
      sum = _mm256_add_epi32(sum, more);
    }
    __m128i total = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    total = _mm_srai_epi32(_mm_add_epi32(total, half), kResampleBits);
    const int pixel = _mm_cvtsi128_si32(_mm_shuffle_epi8(total, low_bytes));
    memcpy(out, &pixel, sizeof(pixel));
  }
}

DDPRUN_AVX2 void ScaleRowAvx2(const uint8_t* in, const RowWeights& row, uint8_t* out, int step) {
  switch (row.pairs) {
    case 1:
      return ScaleRowPairs<1>(in, row, out, step);
    case 2:
      return ScaleRowPairs<2>(in, row, out, step);
    case 3:
      return ScaleRowPairs<3>(in, row, out, step);
    default:
      return ScaleRowPairs<0>(in, row, out, step);
  }
}

DDPRUN_AVX2 void ScaleColumnAvx2(const uint8_t* in, size_t stride, const int32_t* weights, int taps,
                                 int bytes, uint8_t* out) {
  const __m256i half = _mm256_set1_epi32(kHalf);
  // Packing works in halves of a register; this puts the eight groups of four bytes in order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int x = 0; x < bytes; x += kColumnBlockBytes) {
    __m256i sums[4] = {half, half, half, half};
    const uint8_t* line = in + x;
    for (int tap = 0; tap < taps; ++tap, line += stride) {
      const __m256i weight = _mm256_set1_epi32(weights[tap]);
      for (int i = 0; i < 4; ++i) {
        sums[i] = _mm256_add_epi32(sums[i], _mm256_mullo_epi32(Load8(line + i * 8), weight));
      }
    }
    for (__m256i& sum : sums) sum = _mm256_srai_epi32(sum, kResampleBits);
    const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(sums[0], sums[1]),
                                               _mm256_packus_epi32(sums[2], sums[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x),
                        _mm256_permutevar8x32_epi32(packed, order));
  }
}

DDPRUN_AVX2 void ToPlanesAvx2(const uint8_t* in, int count, const ChannelScale& scale,
                              ptrdiff_t plane, float* out) {
  const __m256i byte = _mm256_set1_epi32(255);
  const __m256 full = _mm256_set1_ps(255.0F);
  int x = 0;
  for (; x + 8 <= count; x += 8) {
    __m256i pixels = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + x * 4));
    for (size_t channel = 0; channel < 3; ++channel) {
      __m256 value = _mm256_cvtepi32_ps(_mm256_and_si256(pixels, byte));
      value = _mm256_sub_ps(_mm256_div_ps(value, full), _mm256_set1_ps(scale.mean[channel]));
      value = _mm256_div_ps(value, _mm256_set1_ps(scale.deviation[channel]));
      _mm256_storeu_ps(out + static_cast<ptrdiff_t>(channel) * plane + x, value);
      pixels = _mm256_srli_epi32(pixels, 8);
    }
  }
  if (x < count) ToPlanesPlain(in + x * 4, count - x, scale, plane, out + x);
}

#endif

}  // namespace

const ImageKernels& PlainImageKernels() {
  static constexpr ImageKernels kPlain = {ScaleRowPlain, ScaleColumnPlain, ToPlanesPlain};
  return kPlain;
}

const ImageKernels& BestImageKernels() {
#if defined(__x86_64__)
  static constexpr ImageKernels kAvx2 = {ScaleRowAvx2, ScaleColumnAvx2, ToPlanesAvx2};
  if (__builtin_cpu_supports("avx2")) return kAvx2;
#endif
  return PlainImageKernels();
}

}  // namespace ddprun
