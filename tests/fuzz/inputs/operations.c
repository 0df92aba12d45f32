/* Arguments of every operation, made of the bytes as the golden runner's random calls are made of random numbers. */
#include "input.h"
#include "golden/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    EXPECT(fuzz_bytes(data, size, input_stream()));
    return 0;
}
