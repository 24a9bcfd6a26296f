"""The program in a serving pod: brings the model, writes the repository, runs tritonserver."""
