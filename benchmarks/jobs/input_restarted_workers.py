"""Short epochs, and the workers are started anew for each."""

from _common import Vectors, arguments, perceptron, train
from torch.utils.data import DataLoader

if __name__ == "__main__":
    given = arguments(steps=120)
    loader = DataLoader(Vectors(192), batch_size=32, num_workers=2, persistent_workers=given.remedied)
    train(perceptron(512), loader, given.steps)
