import sys

from vllm.fake import main

if __name__ == "__main__":
    assert sys.argv[1] == "serve"
    main(["--model", *sys.argv[2:]])
