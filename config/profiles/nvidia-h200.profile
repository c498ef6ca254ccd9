# What was measured on an NVIDIA H200: "choice PRODUCT ROWS TOKENS" says which kernel was fastest for
# a linear layer of so many rows (TOKENS of a tile of our own kernel, 0: cuBLASLt), as a tuning cache
# has it. Products that are not here are resolved by the estimate. `aisp info --programme` reads it
# where there is no GPU.
