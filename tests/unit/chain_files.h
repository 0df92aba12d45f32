/* For tests whose devices write each chain's kernel to the current folder (MLX_VK_DEBUG_CHAINS): a group's folder, and whether what
 * is there is valid. */
#ifndef TESTS_UNIT_CHAIN_FILES_H
#define TESTS_UNIT_CHAIN_FILES_H

#include <stdlib.h>
#include <unistd.h>

static int in_folder(void **state)
{
    static char folder[] = "/tmp/mlxvk-chains-XXXXXX";
    (void)state;
    return mkdtemp(folder) && !chdir(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return system("rm -f chain-*.spv && rmdir \"$PWD\"");
}

/* What the tests before wrote. */
static void test_valid(void **state)
{
    (void)state;
    if (system("command -v spirv-val >/dev/null")) skip();
    assert_int_equal(system("for f in chain-*.spv; do spirv-val --target-env vulkan1.2 $f || exit 1; done"), 0);
}

#endif
