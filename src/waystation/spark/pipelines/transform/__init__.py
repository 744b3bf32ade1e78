"""The tables of a pipeline as Spark frames: steps, functions, joins and expectations."""
