// Written by tests/tools/fit_polynomials.py, which says how: polynomials of least largest error, with floats for coefficients.
// Beside each, what of its error shows in the function's value, relative to it, in units of 2^-24: a half is a unit of the
// last place at most.
#ifndef POLYNOMIALS_GLSL
#define POLYNOMIALS_GLSL

const float QUARTER_1 = 1.5708008;
const float QUARTER_2 = -4.4703484e-6;
const float QUARTER_3 = 1.5890691e-8;
const float QUARTER_4 = 2.563344e-12;
const float POSITIVE_HALF_1 = 3.140625;
const float POSITIVE_HALF_2 = 0.00096702576;
const float POSITIVE_HALF_3 = 6.2783295e-7;
const float POSITIVE_QUARTER_1 = 1.5703125;
const float POSITIVE_QUARTER_2 = 0.00048351288;
const float POSITIVE_QUARTER_3 = 3.1391647e-7;
const float LN2_1 = 0.69311523;
const float LN2_2 = 3.1946183e-5;
const float LG2_1 = 0.3010254;
const float LG2_2 = 4.605039e-6;
const float TWO_BY_PI = 0.63661975;
const float ONE_BY_PI = 0.31830987;
const float LN2 = 0.6931472;
const float LOG2_E = 1.442695;
const float LOG2_E_LOW = 1.925963e-8;
const float LOG10_E = 0.4342945;

// The 96 bits of 2^(8 k - 16) / pi from that of 1 on; k < 16
uvec3 words_of_inverse_pi(const uint k)
{
    uint shift = 8u * (k & 3u), last = (k & 8u) == 0u ? 0x377036d8u : 0xe4107f94u;
    uvec4 far = (k & 8u) == 0u ? uvec4(0x000028beu, 0x60db9391u, 0x054a7f09u, 0xd5f47d4du)
        : uvec4(0x054a7f09u, 0xd5f47d4du, 0x377036d8u, 0xa5664f10u);
    uvec4 w = (k & 4u) == 0u ? far : uvec4(far.yzw, last);
    return w.xyz << shift | w.yzw >> 1u >> 31u - shift;
}

// e^x = 1 + x + x^2 tail, |x| <= log(2) / 2; 0.037
float exp_tail(const float x)
{
    float r = 0.0013788108;
    r = fma(r, x, 0.008368693);
    r = fma(r, x, 0.041668907);
    r = fma(r, x, 0.16666521);
    return fma(r, x, 0.4999999);
}
// the same, beside e^x - 1; 0.007
float expm1_tail(const float x)
{
    float r = 0.00019764242;
    r = fma(r, x, 0.0013932341);
    r = fma(r, x, 0.008333543);
    r = fma(r, x, 0.041666493);
    r = fma(r, x, 0.16666666);
    return fma(r, x, 0.5);
}
// log(1 + x) = x - x^2 / 2 + x^3 tail, sqrt(1/2) <= 1 + x <= sqrt(2); 0.013
float log_tail(const float x)
{
    float s = x * x, r = 0.0674893, t = -0.116700314;
    r = fma(r, s, 0.11883662);
    t = fma(t, s, -0.12406239);
    r = fma(r, s, 0.14220339);
    t = fma(t, s, -0.16667989);
    r = fma(r, s, 0.20002073);
    t = fma(t, s, -0.2500001);
    r = fma(r, s, 0.3333332);
    return fma(t, x, r);
}
// sin(x) = x + x s tail, s = x^2, |x| <= pi / 4; 0.003
float sin_tail(const float s)
{
    float r = 2.8325396e-6;
    r = fma(r, s, -0.00019853064);
    r = fma(r, s, 0.008333379);
    return fma(r, s, -0.16666667);
}
// tan(x) = x + x s tail, s = x^2, |x| <= pi / 4; 0.022
float tan_tail(const float s)
{
    float r = 0.0043794224;
    r = fma(r, s, 8.5362975e-5);
    r = fma(r, s, 0.010836864);
    r = fma(r, s, 0.021282962);
    r = fma(r, s, 0.05405943);
    r = fma(r, s, 0.13332672);
    return fma(r, s, 0.3333335);
}
// asin(x) = x + x s tail, s = x^2 <= 1/4; 0.082
float asin_tail(const float s)
{
    float r = 0.042156126;
    r = fma(r, s, 0.024185738);
    r = fma(r, s, 0.045469046);
    r = fma(r, s, 0.074953094);
    return fma(r, s, 0.16666752);
}
// atan(x) = x + x s tail, s = x^2 <= 1; 0.045
float atan_tail(const float s)
{
    float r = -0.0017848244;
    r = fma(r, s, 0.010877406);
    r = fma(r, s, -0.031112054);
    r = fma(r, s, 0.057894472);
    r = fma(r, s, -0.08399896);
    r = fma(r, s, 0.109510064);
    r = fma(r, s, -0.14264025);
    r = fma(r, s, 0.1999853);
    return fma(r, s, -0.333333);
}
// atanh(x) = x + x s tail, s = x^2, |x| <= 0.1716; 0.000
float atanh_tail(const float s)
{
    float r = 0.12138924;
    r = fma(r, s, 0.14249407);
    r = fma(r, s, 0.20000486);
    return fma(r, s, 0.3333333);
}
// sinh(x) = x + x s tail, s = x^2, |x| <= 1.5; 0.048
float sinh_tail(const float s)
{
    float r = 2.8934103e-6;
    r = fma(r, s, 0.00019815777);
    r = fma(r, s, 0.008333516);
    return fma(r, s, 0.16666663);
}
// tanh(x) = x + x s tail, s = x^2, |x| <= 0.65; 0.114
float tanh_tail(const float s)
{
    float r = -0.005514924;
    r = fma(r, s, 0.020469144);
    r = fma(r, s, -0.053687923);
    r = fma(r, s, 0.13330829);
    return fma(r, s, -0.3333326);
}
// erf(a) = a + a tail, x = a^2 - 1/2, |a| <= 1.125; 0.123
float erf_tail(const float x)
{
    float r = 6.933384e-5;
    r = fma(r, x, -0.0005638234);
    r = fma(r, x, 0.0034841641);
    r = fma(r, x, -0.018283827);
    r = fma(r, x, 0.07940956);
    r = fma(r, x, -0.28107217);
    return fma(r, x, -0.034531254);
}
// erfc(x + 2.5), 1.125 <= x + 2.5 <= 3.92; 0.211
float erfc_series(const float x)
{
    float r = -9.5024205e-7;
    r = fma(r, x, 9.791664e-6);
    r = fma(r, x, -1.5114738e-5);
    r = fma(r, x, -6.5639135e-5);
    r = fma(r, x, 0.00026477108);
    r = fma(r, x, -0.00027865477);
    r = fma(r, x, -0.0005543448);
    r = fma(r, x, 0.002810692);
    r = fma(r, x, -0.006111959);
    r = fma(r, x, 0.008618469);
    r = fma(r, x, -0.008351248);
    r = fma(r, x, 0.0054461923);
    r = fma(r, x, -0.00217821);
    return fma(r, x, 0.00040694198);
}
// erfinv(a) / a, x = log(1 - a^2) + 2.625, -5.5 <= x - 2.625 <= 0; 0.368
float erfinv_near(const float x)
{
    float r = 7.4221784e-9;
    r = fma(r, x, 1.5468686e-8);
    r = fma(r, x, -4.6680213e-7);
    r = fma(r, x, -3.0699782e-6);
    r = fma(r, x, 7.331688e-6);
    r = fma(r, x, 0.00021454251);
    r = fma(r, x, 0.001144582);
    r = fma(r, x, -0.0046268757);
    r = fma(r, x, -0.24553895);
    return fma(r, x, 1.5321717);
}
// erfinv(a) / a, x = log(1 - a^2) + 10.625, -16.7 <= x - 10.625 <= -5.5; 0.695
float erfinv_far(const float x)
{
    float r = 2.9822932e-11;
    r = fma(r, x, 4.4302115e-10);
    r = fma(r, x, 2.0213378e-9);
    r = fma(r, x, -5.43613e-9);
    r = fma(r, x, -3.1401044e-7);
    r = fma(r, x, -7.3959236e-6);
    r = fma(r, x, -0.00015169478);
    r = fma(r, x, -0.0035048572);
    r = fma(r, x, -0.1542154);
    return fma(r, x, 3.0935378);
}
// 2^x = 1 + x tail, |x| <= 1/2; 0.053
float exp2_tail(const float x)
{
    float r = 0.00015462896;
    r = fma(r, x, 0.001339101);
    r = fma(r, x, 0.0096180625);
    r = fma(r, x, 0.055503596);
    r = fma(r, x, 0.2402265);
    return fma(r, x, 0.6931472);
}
// the same, with one term less; 0.068
float sin_tail_short(const float s)
{
    float r = -0.0001951791;
    r = fma(r, s, 0.008332187);
    return fma(r, s, -0.16666655);
}
// as sin_tail, |x| <= pi / 2, for 16 bits; 0.105
float sin_tail_half(const float s)
{
    float r = 2.6060538e-6;
    r = fma(r, s, -0.00019809768);
    r = fma(r, s, 0.008333069);
    return fma(r, s, -0.1666666);
}
// cos(x) = 1 - s / 2 + s^2 tail, s = x^2, |x| <= pi / 4; 0.002
float cos_tail(const float s)
{
    float r = 2.4430672e-5;
    r = fma(r, s, -0.0013887301);
    return fma(r, s, 0.041666646);
}
// as tan_tail, for 16 bits; 4.235
float tan_tail_half(const float s)
{
    float r = 0.020154858;
    r = fma(r, s, 0.012937961);
    r = fma(r, s, 0.056926437);
    r = fma(r, s, 0.13291955);
    return fma(r, s, 0.3333518);
}
// as asin_tail, for 16 bits; 1.495
float asin_tail_half(const float s)
{
    float r = 0.049955852;
    r = fma(r, s, 0.04003368);
    r = fma(r, s, 0.07540549);
    return fma(r, s, 0.1666558);
}
// as atan_tail, for 16 bits; 12.300
float atan_tail_half(const float s)
{
    float r = 0.008106104;
    r = fma(r, s, -0.037795905);
    r = fma(r, s, 0.084840134);
    r = fma(r, s, -0.13544533);
    r = fma(r, s, 0.19897865);
    return fma(r, s, -0.3332849);
}
// log(1 + x) = x + x^2 tail, |x| <= 1/16; 0.172
float log_tail_half(const float x)
{
    float r = 0.20082399;
    r = fma(r, x, -0.25081864);
    r = fma(r, x, 0.33333233);
    return fma(r, x, -0.4999992);
}
// asinh(x) = x + x s tail, s = x^2, |x| <= 1/4; 0.064
float asinh_tail_half(const float s)
{
    float r = -0.041217517;
    r = fma(r, s, 0.07487871);
    return fma(r, s, -0.16666543);
}
// atanh(x) = x + x s tail, s = x^2, |x| <= 1/4; 0.292
float atanh_tail_half(const float s)
{
    float r = 0.1572014;
    r = fma(r, s, 0.19946755);
    return fma(r, s, 0.3333389);
}
// erf(a) / a, x = a^2 / 4 - 1, |a| <= 2.75; 3.178
float erf_ratio_half(const float x)
{
    float r = 0.0006287169;
    r = fma(r, x, -0.0016064942);
    r = fma(r, x, 0.0030100427);
    r = fma(r, x, -0.007646133);
    r = fma(r, x, 0.017795233);
    r = fma(r, x, -0.035408534);
    r = fma(r, x, 0.06365435);
    r = fma(r, x, -0.10426156);
    r = fma(r, x, 0.15820886);
    r = fma(r, x, -0.23849794);
    return fma(r, x, 0.49766108);
}

#endif
