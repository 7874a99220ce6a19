#!/usr/bin/env python3
"""Writes a GGUF file as a Hugging Face folder in bfloat16, for engines that read nothing else. Needs transformers and gguf (and torch, but for
--tokenizer-only): run it by the Python of the engine that is to read the folder."""
import argparse
import os

from transformers import AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("folder")
    parser.add_argument("--tokenizer-only", action="store_true")
    args = parser.parse_args()
    place, name = os.path.split(os.path.abspath(args.file))
    AutoTokenizer.from_pretrained(place, gguf_file=name).save_pretrained(args.folder)
    if not args.tokenizer_only:
        import torch  # pylint: disable=import-outside-toplevel
        from transformers import AutoModelForCausalLM, GgufConfig  # pylint: disable=import-outside-toplevel
        model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True))
        # The weights are plain by now, but it still counts as quantised, which it would not write.
        model.hf_quantizer = None
        vars(model.config).pop("quantization_config", None)
        model.save_pretrained(args.folder)


if __name__ == "__main__":
    main()
