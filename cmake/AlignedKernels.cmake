# Where the linker happens to put a kernel decides whether its loop spans two or three cache lines, which was 6 % of the speed of a Q4_1 model:
# every new function elsewhere in the binary moved it. Aligned, it depends on the loop alone, in meshnet and in what it is compared with.
# Include it after llama.cpp is added.
target_compile_options(ggml-cpu PRIVATE -falign-functions=64 -falign-loops=64)
