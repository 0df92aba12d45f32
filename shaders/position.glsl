// An integer index as a position on an axis.
#ifndef POSITION_GLSL
#define POSITION_GLSL
#include "common.glsl"
const uint NOWHERE = 0xffffffffu;

// Of `size` positions the first `room` are allowed. Negative indices wrap once; what is outside then is nowhere where
// `strict`, else the nearest one. raw: the bits of an index of dtype t, the high word for 64 bits only.
uint position_of(const uvec2 raw, const uint t, const uint size, const uint room, const bool strict)
{
    bool wide = t == U64 || t == I64, beyond = false;
    uint v = wide ? raw.x : sign_extend(raw.x, t);
    bool negative = is_signed(t) && int(wide ? raw.y : v) < 0;
    if (wide) beyond = negative ? raw.y != 0xffffffffu || int(raw.x) >= 0 : raw.y != 0u;
    if (negative) v += size;
    if (!beyond && v < room) return v;
    return strict ? NOWHERE : negative && (beyond || v >= size) ? 0u : room - 1u;
}
#endif
