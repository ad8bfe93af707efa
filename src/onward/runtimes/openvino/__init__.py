"""OpenVINO IR folders on the CPU, through its paged attention. The only room that imports openvino."""
