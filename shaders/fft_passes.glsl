// Transforms of a few elements in registers, and passes between them and shared memory, of the kernels of Fourier transforms.
#ifndef FFT_PASSES_GLSL
#define FFT_PASSES_GLSL
#include "fft_lines.glsl"

// ---- transforms of a few elements, in v[o], v[o + 1], ... of a thread ----

#ifdef FIXED
vec2 v[26];
#else
vec2 v[16];
#endif

#define FOUR(a, b, c, d) { \
    vec2 p = a + c, q = a - c, r = b + d, s = (b - d).yx * vec2(1.0, -1.0); \
    a = p + r; b = q + s; c = p - r; d = q - s; }

const float C8 = 0.70710678118654752, C16 = 0.92387953251128674, S16 = 0.38268343236508977;
const vec2 ROOT16[10] = { vec2(1, 0), vec2(C16, -S16), vec2(C8, -C8), vec2(S16, -C16), vec2(0, -1), vec2(-S16, -C16), vec2(-C8, -C8),
                          vec2(-C16, -S16), vec2(-1, 0), vec2(-C16, S16) };

void butterfly2(const uint o) { vec2 x = v[o]; v[o] += v[o + 1]; v[o + 1] = x - v[o + 1]; }
void butterfly4(const uint o) FOUR(v[o], v[o + 1], v[o + 2], v[o + 3])
void butterfly8(const uint o)                                // leaves element k at (k % 4) * 2 + k / 4
{
    FOUR(v[o], v[o + 2], v[o + 4], v[o + 6])
    FOUR(v[o + 1], v[o + 3], v[o + 5], v[o + 7])
    [[unroll]] for (uint i = 0; i < 4; i++) {
        vec2 x = v[o + 2 * i], y = multiply(v[o + 2 * i + 1], ROOT16[2 * i]);
        v[o + 2 * i] = x + y;
        v[o + 2 * i + 1] = x - y;
    }
}
void butterfly16(const uint o)                               // leaves element k at (k % 4) * 4 + k / 4
{
    [[unroll]] for (uint i = 0; i < 4; i++) FOUR(v[o + i], v[o + i + 4], v[o + i + 8], v[o + i + 12])
    [[unroll]] for (uint i = 1; i < 4; i++)
        [[unroll]] for (uint k = 1; k < 4; k++) v[o + i + 4 * k] = multiply(v[o + i + 4 * k], ROOT16[i * k]);
    [[unroll]] for (uint k = 0; k < 16; k += 4) FOUR(v[o + k], v[o + k + 1], v[o + k + 2], v[o + k + 3])
}

// cos and sin of 2 pi k / R
const vec2 TURN3[3] = { vec2(1, 0), vec2(-0.5, 0.86602540378443865), vec2(-0.5, -0.86602540378443865) };
const vec2 TURN5[5] = { vec2(1, 0), vec2(0.30901699437494742, 0.95105651629515357), vec2(-0.80901699437494742, 0.58778525229247313),
    vec2(-0.80901699437494742, -0.58778525229247313), vec2(0.30901699437494742, -0.95105651629515357) };
const vec2 TURN7[7] = { vec2(1, 0), vec2(0.62348980185873353, 0.78183148246802981), vec2(-0.22252093395631440, 0.97492791218182361),
    vec2(-0.90096886790241913, 0.43388373911755812), vec2(-0.90096886790241913, -0.43388373911755812),
    vec2(-0.22252093395631440, -0.97492791218182361), vec2(0.62348980185873353, -0.78183148246802981) };
const vec2 TURN11[11] = { vec2(1, 0), vec2(0.84125353283118117, 0.54064081745559758), vec2(0.41541501300188643, 0.90963199535451837),
    vec2(-0.14231483827328514, 0.98982144188093273), vec2(-0.65486073394528506, 0.75574957435425828),
    vec2(-0.95949297361449739, 0.28173255684142970), vec2(-0.95949297361449739, -0.28173255684142970),
    vec2(-0.65486073394528506, -0.75574957435425828), vec2(-0.14231483827328514, -0.98982144188093273),
    vec2(0.41541501300188643, -0.90963199535451837), vec2(0.84125353283118117, -0.54064081745559758) };
const vec2 TURN13[13] = { vec2(1, 0), vec2(0.88545602565320989, 0.46472317204376854), vec2(0.56806474673115581, 0.82298386589365640),
    vec2(0.12053668025532305, 0.99270887409805400), vec2(-0.35460488704253562, 0.93501624268541482),
    vec2(-0.74851074817110109, 0.66312265824079520), vec2(-0.97094181742605203, 0.23931566428755777),
    vec2(-0.97094181742605203, -0.23931566428755777), vec2(-0.74851074817110109, -0.66312265824079520),
    vec2(-0.35460488704253562, -0.93501624268541482), vec2(0.12053668025532305, -0.99270887409805400),
    vec2(0.56806474673115581, -0.82298386589365640), vec2(0.88545602565320989, -0.46472317204376854) };

#define ODD(R) \
    void butterfly##R(const uint o, const uint step) \
    { \
        vec2 sum[R / 2], dif[R / 2], start = v[o]; \
        [[unroll]] for (uint k = 0; k < R / 2; k++) { \
            sum[k] = v[o + (k + 1) * step] + v[o + (R - 1 - k) * step]; \
            dif[k] = v[o + (k + 1) * step] - v[o + (R - 1 - k) * step]; \
            v[o] += sum[k]; \
        } \
        [[unroll]] for (uint m = 1; m <= R / 2; m++) { \
            vec2 p = start, q = vec2(0.0); \
            [[unroll]] for (uint k = 0; k < R / 2; k++) { \
                vec2 w = TURN##R[(k + 1) * m % R]; \
                p = fma(sum[k], vec2(w.x), p); \
                q = fma(dif[k], vec2(w.y), q); \
            } \
            v[o + m * step] = p + vec2(q.y, -q.x); \
            v[o + (R - m) * step] = p - vec2(q.y, -q.x); \
        } \
    } \
    void butterfly##R(const uint o) { butterfly##R(o, 1u); }
ODD(3) ODD(5) ODD(7) ODD(11) ODD(13)

const vec2 ROOT9[5] = { vec2(1, 0), vec2(0.76604444311897804, -0.64278760968653933), vec2(0.17364817766693035, -0.98480775301220806),
                        vec2(-0.5, -0.86602540378443865), vec2(-0.93969262078590838, -0.34202014332566873) };
const vec2 ROOT10[5] = { vec2(1, 0), vec2(0.80901699437494742, -0.58778525229247313), vec2(0.30901699437494742, -0.95105651629515357),
                         vec2(-0.30901699437494742, -0.95105651629515357), vec2(-0.80901699437494742, -0.58778525229247313) };

void butterfly9(const uint o)                                // leaves element k at (k % 3) * 3 + k / 3
{
    [[unroll]] for (uint i = 0; i < 3; i++) butterfly3(o + i, 3u);
    [[unroll]] for (uint i = 1; i < 3; i++)
        [[unroll]] for (uint k = 1; k < 3; k++) v[o + i + 3 * k] = multiply(v[o + i + 3 * k], ROOT9[i * k]);
    [[unroll]] for (uint k = 0; k < 3; k++) butterfly3(o + 3 * k);
}
void butterfly10(const uint o)                               // leaves element k at (k % 5) * 2 + k / 5
{
    butterfly5(o, 2u);
    butterfly5(o + 1u, 2u);
    [[unroll]] for (uint k = 0; k < 5; k++) {
        v[o + 2 * k + 1] = multiply(v[o + 2 * k + 1], ROOT10[k]);
        butterfly2(o + 2 * k);
    }
}

#ifdef FIXED
const vec2 ROOT25[17] = { vec2(1, 0), vec2(0.96858316112863108, -0.24868988716485479),
    vec2(0.87630668004386358, -0.48175367410171532), vec2(0.72896862742141155, -0.68454710592868862),
    vec2(0.53582679497899655, -0.84432792550201508), vec2(0.30901699437494745, -0.95105651629515353),
    vec2(0.062790519529313527, -0.99802672842827156), vec2(-0.1873813145857246, -0.98228725072868872),
    vec2(-0.42577929156507272, -0.90482705246601947), vec2(-0.63742398974868975, -0.77051324277578925),
    vec2(-0.80901699437494734, -0.58778525229247325), vec2(-0.92977648588825135, -0.36812455268467814),
    vec2(-0.99211470131447776, -0.12533323356430454), vec2(-0.99211470131447788, 0.12533323356430429),
    vec2(-0.92977648588825146, 0.36812455268467792), vec2(-0.80901699437494778, 0.58778525229247269),
    vec2(-0.63742398974868952, 0.77051324277578936) };
void butterfly25(const uint o)                               // leaves element k at (k % 5) * 5 + k / 5
{
    [[unroll]] for (uint i = 0; i < 5; i++) butterfly5(o + i, 5u);
    [[unroll]] for (uint i = 1; i < 5; i++)
        [[unroll]] for (uint k = 1; k < 5; k++) v[o + i + 5 * k] = multiply(v[o + i + 5 * k], ROOT25[i * k]);
    [[unroll]] for (uint k = 0; k < 5; k++) butterfly5(o + 5 * k);
}
#endif

// Where a group of r leaves its element i.
uint order(const uint r, const uint i)
{
    return r == 16u ? i % 4u * 4u + i / 4u : r == 8u ? i % 4u * 2u + i / 4u : r == 9u ? i % 3u * 3u + i / 3u
         : r == 10u ? i % 5u * 2u + i / 5u : r == 25u ? i % 5u * 5u + i / 5u : i;
}

// ---- passes: of radix r, after passes that together transformed `done` elements ----

// Multiplies element i of a group of r, with start * root^i; of a result they are out of order.
void twiddle(const uint o, const uint r, const vec2 start, const vec2 root, const bool ordered, const bool starts)
{
    vec2 w[25];
    w[0] = start;
    w[1] = root;
    if (r == 16u) {                                    // two products each, but few powers to keep
        w[2] = multiply(w[1], w[1]);
        w[3] = multiply(w[2], w[1]);
        w[4] = multiply(w[2], w[2]);
        w[8] = multiply(w[4], w[4]);
        w[12] = multiply(w[8], w[4]);
        if (starts) [[unroll]] for (uint i = 4; i < 16u; i += 4u) w[i] = multiply(w[i], start);
        [[unroll]] for (uint i = 0; i < 16u; i++) {
            uint at = o + (ordered ? order(r, i) : i);
            if (i % 4u > 0u) v[at] = multiply(v[at], w[i % 4u]);
            if (i / 4u > 0u || starts) v[at] = multiply(v[at], w[i / 4u * 4u]);
        }
        return;
    }
    [[unroll]] for (uint i = 0; i < r; i++) {
        uint at = o + (ordered ? order(r, i) : i);
        if (i > 1u) w[i] = multiply(w[i / 2u], w[i - i / 2u]);
        if (i > 0u) v[at] = multiply(v[at], w[i]);
        if (starts) v[at] = multiply(v[at], start);
    }
}

// Of the group number j of a pass.
void turn_group(const uint o, const uint r, const uint done, const uint j)
{
    if (done > 1u) twiddle(o, r, vec2(0.0), r >= 8u ? near_root(j % done, done * r) : root(j % done, done * r), false, false);
}

// A group of r elements, of line g.x the one number g.y, from shared memory to v[o], v[o + 1], ... and back.
void get(const uint o, const uint r, const uint done, const uvec2 g, const uint base)
{
    [[unroll]] for (uint i = 0; i < r; i++) v[o + i] = staged[base + slot(g.x, g.y) + beyond(i * (size / r))];
    turn_group(o, r, done, g.y);
}

uint target(const uint r, const uint done, const uint j) { return j / done * done * r + j % done; }   // of a group's first result

void set(const uint o, const uint r, const uint done, const uvec2 g, const uint base)
{
    uint to = slot(g.x, target(r, done, g.y));
    [[unroll]] for (uint i = 0; i < r; i++) staged[base + to + beyond(i * done)] = v[o + order(r, i)];
}

#ifdef FIXED
#define RADIX(n) (RADICES >> 4 * n & 15u) == CODE_25 ? 25u : (RADICES >> 4 * n & 15u) + 1u
const uint R0 = RADIX(0), R1 = RADIX(1), R2 = RADIX(2), R3 = RADIX(3), R4 = RADIX(4), R5 = RADIX(5), R6 = RADIX(6), R7 = RADIX(7);
const bool EXACT = gl_WorkGroupSize.x * HELD == SIZE * LINES && BINARY;

vec2 fetch(const uint l, const uint e);                            // element e of line l of this workgroup
uvec3 group_at(const uint o, const uint r, const bool by_line);          // the workgroup's group that this thread holds at v[o]: line, number, is there one

void butterflies(const uint r)
{
    [[unroll]] for (uint o = 0; o < HELD; o += r)
        switch (r) {
        case 2u: butterfly2(o); break;
        case 3u: butterfly3(o); break;
        case 4u: butterfly4(o); break;
        case 5u: butterfly5(o); break;
        case 7u: butterfly7(o); break;
        case 8u: butterfly8(o); break;
        case 9u: butterfly9(o); break;
        case 10u: butterfly10(o); break;
        case 11u: butterfly11(o); break;
        case 13u: butterfly13(o); break;
        case 25u: butterfly25(o); break;
        default: butterfly16(o);
        }
}

void from_shared(const uint r, const uint done, const bool by_line)
{
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        if (g.z != 0u) get(o, r, done, g.xy, 0u);
    }
}

void to_shared(const uint r, const uint done, const bool by_line)
{
    [[unroll]] for (uint o = 0; o < HELD; o += r) {
        uvec3 g = group_at(o, r, by_line);
        if (g.z != 0u) set(o, r, done, g.xy, 0u);
    }
}

// Neighbouring threads load neighbouring elements, where groups of a line are too few for that.
void load_all()
{
    const uint total = SIZE * LINES;
    [[unroll]] for (uint k = 0; k < HELD; k++) {
        uint i = min(gl_LocalInvocationID.x + k * gl_WorkGroupSize.x, total - 1u);
        v[k] = fetch(i / SIZE, i % SIZE);
    }
    [[unroll]] for (uint k = 0; k < HELD; k++) {
        uint i = gl_LocalInvocationID.x + k * gl_WorkGroupSize.x;
        if (i < total) staged[slot(i / SIZE, i % SIZE)] = v[k];
    }
}
#endif
#endif
