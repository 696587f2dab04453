from .tracker import (
    TensorBoardConfig as TensorBoardConfig,
    TensorBoardTracker as TensorBoardTracker,
)
