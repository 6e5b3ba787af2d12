"""Weights in and out: whole models under their own names, in files that other programs read and write.

    safetensors     one file of tensors, and the folder of several with an index, as Hugging Face lays it out
    named           weights by name, wherever they come from: a mapping, a file, a folder
    fill            a layer takes its own from them

Nothing that is read is executed: safetensors are JSON and bytes, and torch's own files are read with
`weights_only`.
"""
