"""Ready models, each in one file that you can copy and change. They need torch alone.

Each file has a plain nn.Module and a function of (shape, classes) that chooses its sizes by the
data. `shape` is that of one example; that of tokens also has `vocabulary`, how many there are.
`classes` is how many outputs there are. A copy is used as `--model my_file:resnet8`.
"""
