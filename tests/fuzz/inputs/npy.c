/* An array's file. */
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mlxvk_io_reader reader = input_reader(data, size);
    mlxvk_array a = { NULL };
    int code = mlxvk_load_reader(&a, reader, input_stream());
    if (code) expect_refusal(code);
    else expect_whole(a);
    EXPECT(!code == (a.ctx != NULL));
    mlxvk_array_free(a);
    mlxvk_io_reader_free(reader);
    return 0;
}
