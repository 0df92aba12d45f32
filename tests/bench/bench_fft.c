/* Fourier transforms beside a copy of the same run: time of one, and bytes of operand and result a second.
 *
 *     build/bench/bench_fft [what:rows:length[:columns] ...]         (default: a table; what: fft, ifft, rfft, irfft, fft2)
 */
#include "bench.h"

static double copy_speed;

enum what { COPY, FFT, IFFT, RFFT, IRFFT, FFT2 };
static const char *const names[] = { "copy", "fft", "ifft", "rfft", "irfft", "fft2" };

static int apply(enum what what, mlxvk_array *y, mlxvk_array x, int n, int axis)
{
    const mlxvk_fft_norm norm = MLXVK_FFT_NORM_BACKWARD;
    mlxvk_vector_array one;
    int code;
    switch (what) {
    case FFT: return mlxvk_fft_fft(y, x, n, axis, norm, stream);
    case IFFT: return mlxvk_fft_ifft(y, x, n, axis, norm, stream);
    case RFFT: return mlxvk_fft_rfft(y, x, n, axis, norm, stream);
    case IRFFT: return mlxvk_fft_irfft(y, x, n, axis, norm, stream);
    case FFT2: return mlxvk_fft_fft2(y, x, NULL, 0, (int[]){ 0, 1 }, 2, norm, stream);
    default: break;
    }
    one = mlxvk_vector_array_new_value(x);
    code = mlxvk_stack(y, one, stream);
    mlxvk_vector_array_free(one);
    return code;
}

static double batch(enum what what, mlxvk_array x, int n, int axis, mlxvk_array *y, int repeat)
{
    double start = now();
    for (int i = 0; i < repeat; i++) {
        check(apply(what, y, x, n, axis), "operation");
        check(mlxvk_finalize(stream), "finalize");
    }
    check(mlxvk_synchronize(stream), "synchronize");
    return now() - start;
}

/* Best of several rounds, in seconds for one, once the device has been busy for long enough to raise its clock, which falls
 * while a pipeline is compiled. */
static double measure(enum what what, mlxvk_array x, int n, int axis, mlxvk_array *y)
{
    double best = 1e30, start, once;
    int repeat = gpu ? mlxvk_array_nbytes(x) > (64u << 20) ? 20 : 300 : 2;
    batch(what, x, n, axis, y, 1);
    start = now();
    while (gpu && now() - start < 0.4) batch(what, x, n, axis, y, repeat);
    for (int round = 0; round < 6; round++)
        if ((once = batch(what, x, n, axis, y, repeat)) < best) best = once;
    return best / repeat;
}

static void line(enum what what, int rows, int n, int axis)
{
    mlxvk_dtype dtype = what == RFFT ? MLXVK_FLOAT32 : MLXVK_COMPLEX64;
    int length = what == IRFFT ? n / 2 + 1 : n, shape[2] = { axis ? rows : length, axis ? length : rows };
    mlxvk_array x = { NULL }, y = { NULL };
    double seconds, speed;
    check(mlxvk_random_normal(&x, shape, 2, MLXVK_FLOAT32, 0, 1, (mlxvk_array){ NULL }, stream), "normal");
    check(mlxvk_astype(&x, x, dtype, stream), "astype");
    check(mlxvk_array_eval(x), "eval");
    seconds = measure(what, x, n, axis, &y);
    speed = (double)(mlxvk_array_nbytes(x) + mlxvk_array_nbytes(y)) / seconds * 1e-9;
    if (what == COPY) copy_speed = speed;
    printf("| %-5s | %7d rows of %8d%s | %9.1f us | %6.0f GB/s | %4.0f %% |\n", names[what], rows, n, axis ? "" : ", columns", seconds * 1e6, speed,
           100 * speed / copy_speed);
    fflush(stdout);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* The line that an argument asks for. */
static bool line_of(const char *text)
{
    char name[8] = "", columns[8] = "";
    int rows, n, found = sscanf(text, "%7[a-z0-9]:%d:%d:%7s", name, &rows, &n, columns);
    for (int what = FFT; what <= FFT2; what++)
        if (found >= 3 && rows > 0 && n > 0 && !strcmp(name, names[what])) {
            line((enum what)what, rows, n, found == 3);
            return true;
        }
    fprintf(stderr, "%s: what:rows:length[:columns]\n", text);
    return false;
}

int main(int argc, char **argv)
{
    int log, total;
    open_device(NULL);
    log = gpu ? 24 : 18;
    total = 1 << log;
    printf("%s, %s\n\n| what | | time | operand and result | of the copy |\n|---|---|---|---|---|\n", device_name, driver);
    line(COPY, total >> 12, 4096, 1);
    for (int i = 1; i < argc; i++) if (!line_of(argv[i])) return 2;
    if (argc < 2) {
        static const int lengths[] = { 16, 64, 128, 256, 512, 1000, 1024, 2048, 2187, 4000, 4096, 4099, 8192, 16384, 65536, 100000 };
        line(FFT, total >> 12, 4096, 1);
        for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++) {
            line(FFT, total / lengths[i], lengths[i], 1);
            line(RFFT, total / lengths[i], lengths[i], 1);
        }
        line(IRFFT, total >> 12, 4096, 1);
        line(IRFFT, total >> 14, 1 << 14, 1);
        line(FFT, total >> 8, 256, 0);
        line(FFT, total >> 12, 4096, 0);
        line(FFT2, 1 << log / 2, 1 << log / 2, 1);
        line(FFT, 16, total >> 4, 1);
        line(FFT, 1, total, 1);
        line(FFT, 4096, 64, 1);
        line(FFT, 1, 1024, 1);
    }
    close_device();
    return 0;
}
