/* The Qwen3 program's config.json. */
#include "input.h"
#include "qwen3/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config c;
    struct error e = { "" };
    input_file("config.json", data, size);
    if (config_read(&c, input_folder(), &e)) {
        config_quantization(&c, "lm_head");
        config_quantization(&c, "model.layers.0.mlp.up_proj");
        config_free(&c);
    } else EXPECT(e.text[0]);
    return 0;
}
