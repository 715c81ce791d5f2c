"""SGLang's scheduler, radix cache and metrics in the lab: `engine.Engine` takes the place of the lab's own for vLLM."""
