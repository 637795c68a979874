/* Whether all floats of an array are ordinary, in one pass at the speed of the memory that they stand in.
 *
 * Without its sign the bits of a float grow with its size; infinities and what is no number lie above all others. So
 * what exceeds a limit carries into the highest bit once `excess` is added: no comparison, and as many at once as a
 * register of 16 bytes holds.
 */
#include <stdint.h>

#define ORDINARY(name, word)                                                                                           \
    static int name(const word *bits, int64_t count, word limit) {                                                     \
        typedef word many __attribute__((vector_size(16), aligned(sizeof(word)), may_alias));                          \
        enum { EACH = 16 / sizeof(word), TURN = 4 * EACH };                                                            \
        const word sign = (word)((word)1 << (8 * sizeof(word) - 1)), size = (word)(sign - 1);                          \
        const word excess = (word)(sign - limit - 1);                                                                  \
        many found = {0}, second = {0}, third = {0}, fourth = {0};                                                     \
        word last = 0;                                                                                                 \
        int64_t i = 0;                                                                                                 \
        for (; i + TURN <= count; i += TURN) {                                                                         \
            const many *four = (const many *)(bits + i);                                                               \
            found |= (four[0] & size) + excess;                                                                        \
            second |= (four[1] & size) + excess;                                                                       \
            third |= (four[2] & size) + excess;                                                                        \
            fourth |= (four[3] & size) + excess;                                                                       \
        }                                                                                                              \
        for (; i < count; i++) last |= (word)((bits[i] & size) + excess);                                              \
        found |= second | third | fourth;                                                                              \
        for (int j = 0; j < EACH; j++) last |= found[j];                                                               \
        return !(last & sign);                                                                                         \
    }
ORDINARY(ordinary_halves, uint16_t)
ORDINARY(ordinary_floats, uint32_t)
ORDINARY(ordinary_doubles, uint64_t)
