// Convolutions as matrix products: row m of a is a position of the result, column k a tap of the kernel with an input channel;
// a's elements are gathered from the input (batch, three axes outermost first, channels), b is the kernel (output channels,
// taps, input channels of a group). A dilated input is left to the host, which dispatches once for each remainder. A workgroup's
// z counts groups, or, where K is split, parts of each.
layout(push_constant) uniform conv_push {
    uint M, N, C;                                      // positions of the result; output and input channels of a group
    uint offset_a, offset_b, offset_out;
    uint channels;                                     // of the input, all groups
    uint b_row;                                        // elements of the kernel from one output channel to the next
    uint part;                                         // how much of K one workgroup takes
    uint steps[3];                                     // input positions from one position to the next, << 16: from tap to tap
    uint out_size[3], in_size[3], taps[3];
    int base[3];                                       // the input position under the first tap of the first position
    int b_tap[3];                                      // elements of the kernel from one tap to the next
    uint out_step[3], out_batch;                       // elements of the result from one position, one batch to the next
};
#define K (taps[0] * taps[1] * taps[2] * C)

struct Place { uint a, b, d, low, high; };           // first elements of a group, and the range of K

Place place(const uint z)
{
    uint parts = EPILOGUE == PART ? (K + part - 1u) / part : 1u, which = z % parts, group = z / parts;
    Place p = Place(offset_a + group * C, offset_b + group * N * b_row, offset_out + group * N, 0u, K);
    if (EPILOGUE == PART) p = Place(p.a, p.b, offset_out + z * M * N, which * part, min(K, which * part + part));
    return p;
}

uvec4 position(const uint m)                                 // batch, axes
{
    uint x = m / out_size[2], y = x / out_size[1];
    return uvec4(y / out_size[0], y % out_size[0], x % out_size[1], m % out_size[2]);
}

uint out_at(const uint d, const uint m)                            // the first element of a row of the result
{
    uvec4 o = position(m);
    return EPILOGUE == PART ? d + m * N : d + o.x * out_batch + o.y * out_step[0] + o.z * out_step[1] + o.w * out_step[2];
}

struct Row { uint at; ivec3 from; };                 // the input element and position under the first tap

Row row_at(const uint a, const uint m)
{
    uvec4 o = position(m);
    ivec3 from = ivec3(base[0], base[1], base[2]) + ivec3(o.yzw) * (ivec3(steps[0], steps[1], steps[2]) & 0xffff);
    uint at = a + (((o.x * in_size[0] + from.x) * in_size[1] + from.y) * in_size[2] + from.z) * channels;
    return Row(at, m < M ? from : ivec3(int(0x80000000u)));            // beyond the last row: outside of the input
}

struct Tap { uvec3 tap; uint c; };                   // a column of a

Tap tap_at(const uint k)
{
    uint x = k / C, y = x / taps[2];
    return Tap(uvec3(y / taps[1], y % taps[1], x % taps[2]), k % C);
}

void advance(inout Tap t, const uint columns)
{
    for (t.c += columns; t.c >= C; t.c -= C) {
        if (++t.tap.z < taps[2]) continue;
        t.tap.z = 0u;
        if (++t.tap.y < taps[1]) continue;
        t.tap.y = 0u;
        t.tap.x++;
    }
}

struct Reach { ivec3 by; uint a, b; };               // what a tap adds to a row's position and element, and to an element of b

Reach reach(const Tap t)
{
    ivec3 by = ivec3(t.tap) * ivec3(steps[0] >> 16, steps[1] >> 16, steps[2] >> 16);
    uint a = ((by.x * in_size[1] + by.y) * in_size[2] + by.z) * channels + t.c;
    return Reach(by, a, uint(int(t.tap.x) * b_tap[0] + int(t.tap.y) * b_tap[1] + int(t.tap.z) * b_tap[2]) + t.c);
}

bool inside(const Row r, const Reach x)
{
    uvec3 q = uvec3(r.from + x.by);
    return q.x < in_size[0] && q.y < in_size[1] && q.z < in_size[2];
}
