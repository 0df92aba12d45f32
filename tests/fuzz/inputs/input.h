/* What libFuzzer's targets share: each of the others is one, LLVMFuzzerTestOneInput over bytes that strangers made. Run
 * by make fuzz-inputs. Nothing may crash, leak or hang; what is taken is whole, and what is refused is refused with a
 * line. */
#ifndef TESTS_FUZZ_INPUTS_INPUT_H
#define TESTS_FUZZ_INPUTS_INPUT_H

#include "mlxvk.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program, which libFuzzer takes as a finding, where something is not so. */
#define EXPECT(condition) expect(condition, #condition, __FILE__, __LINE__)
void expect(bool condition, const char *text, const char *file, int line);

mlxvk_stream input_stream(void);                           /* of the default device, all of whose runs share it */
/* The bytes as a file of that name, in a folder of this process in memory where there is such; its path. */
const char *input_file(const char *name, const uint8_t *data, size_t size);
const char *input_folder(void);
/* A reader of the bytes, to be freed. */
mlxvk_io_reader input_reader(const uint8_t *data, size_t size);
/* A call was refused, with a line about it; or this array was given, of which each element is there. */
void expect_refusal(int code);
void expect_whole(mlxvk_array array);

#endif
