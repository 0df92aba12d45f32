/* Cases that are called, and not computed. */
#include "golden.h"
#include "watch.h"

int golden_watch(const char *path, const struct watch *watch)
{
    struct run_options options = { .layouts = { [CONTIGUOUS] = true, [SCATTERED] = true }, .watch = watch };
    struct golden_file file;
    struct problem problem = { "" };
    int count = 0;
    const cJSON *item;
    if (!golden_open(&file, path, &problem)) {
        watch->failed(watch->user, problem.text);
        return 0;
    }
    cJSON_ArrayForEach(item, file.cases) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));
        const char *op = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "op"));
        problem = (struct problem){ "" };
        watch->begin(watch->user, name ? name : "a case without a name", op ? op : "");
        count++;
        if (run_case(&file, item, watch->stream, &options, &problem) == FAILED)
            watch->failed(watch->user, problem.text);
    }
    golden_close(&file);
    return count;
}
