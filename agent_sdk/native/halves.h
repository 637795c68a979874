/* Float32 as float16 and back, four at a time, at about the speed of memory and without a CPU's own instructions for it.
 *
 * Rounding is to the nearest, and to the even one of two that are equally near. A float16 has 5 bits of exponent where a
 * float32 has 8, 112 less, and 10 bits of fraction where that has 23. Those below 2^-14 have a fixed step of 2^-24: they
 * are rounded by adding a float of that step, and made from whole numbers. All stays right where a thread takes floats
 * below 2^-126 for 0.
 */
#include <stdint.h>
#include <string.h>

enum { HALVES = 4 };
typedef uint32_t words __attribute__((vector_size(4 * HALVES)));
typedef int32_t whole __attribute__((vector_size(4 * HALVES)));
typedef float floats __attribute__((vector_size(4 * HALVES)));
typedef uint16_t shorts __attribute__((vector_size(2 * HALVES)));

#define CHOSEN(condition, one, other) (((words)(condition) & (one)) | (~(words)(condition) & (other)))

static inline shorts narrowed(words bits, words *beyond) {
    words size = bits & 0x7FFFFFFF;
    whole compared = (whole)size;
    words usual = (size + 0xC8000FFF + ((size >> 13) & 1)) >> 13;
    words small = (words)((floats)size + 0.5f) - 0x3F000000;
    words large = 0x7C00 | ((words)(compared > 0x7F800000) & 0x0200);
    *beyond |= (words)((compared >= 0x477FF000) & (compared < 0x7F800000));
    words found = CHOSEN(compared < 0x38800000, small, CHOSEN(compared < 0x477FF000, usual, large));
    return __builtin_convertvector(found | ((bits >> 16) & 0x8000), shorts);
}

static inline words widened(shorts halves, words *infinite) {
    words bits = __builtin_convertvector(halves, words), size = bits & 0x7FFF;
    whole compared = (whole)size;
    words usual = (size << 13) + 0x38000000;
    words small = (words)(__builtin_convertvector(compared, floats) * 0x1p-24f);
    words large = (size << 13) | 0x7F800000;
    *infinite |= (words)(compared == 0x7C00);
    return CHOSEN(compared < 0x0400, small, CHOSEN(compared < 0x7C00, usual, large)) | ((bits & 0x8000) << 16);
}

#define CHANGE(name, change, given, made)                                                                              \
    static int name(const void *from, void *to, int64_t count) {                                                       \
        words found = {0};                                                                                             \
        for (int64_t at = 0; at < count; at += HALVES) {                                                               \
            int64_t some = count - at < HALVES ? count - at : HALVES;                                                  \
            given in = {0};                                                                                            \
            if (some == HALVES) memcpy(&in, (const char *)from + at * sizeof in[0], sizeof in);                        \
            else memcpy(&in, (const char *)from + at * sizeof in[0], some * sizeof in[0]);                             \
            made out = change(in, &found);                                                                             \
            if (some == HALVES) memcpy((char *)to + at * sizeof out[0], &out, sizeof out);                             \
            else memcpy((char *)to + at * sizeof out[0], &out, some * sizeof out[0]);                                  \
        }                                                                                                              \
        return !(found[0] | found[1] | found[2] | found[3]);                                                           \
    }
CHANGE(narrow_floats, narrowed, words, shorts)
CHANGE(widen_halves, widened, shorts, words)
