"""The models of the three suites, each built on its device with random weights and nothing downloaded."""
