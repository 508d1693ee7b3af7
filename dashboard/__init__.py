"""A Dash app that shows the traces read by `tracer`."""
