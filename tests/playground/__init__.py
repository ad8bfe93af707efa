"""The playground in a browser: needs Playwright and Chromium; what is not there is named in the skip."""
