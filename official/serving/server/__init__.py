"""The server: a model behind HTTP, in TensorFlow Serving's REST contract and the v2 inference protocol.

From the socket to the model and back:

  connections        sockets of clients, and the web pages that may ask
  handlers           requests: headers are checked first, then the body, then the answer
  protocols          REST and v2: bodies to checked calls of a signature, results to bodies; no HTTP
  batcher            calls of all clients wait here; a thread takes as many as fit into a batch
  reading            a version's files, read in a process of its own
  versions           the version that computes a batch; a newer one takes its place when it is loaded
  monitoring         metrics and log lines
  application        all of them together: start and stop

The event loop answers, one thread computes, and now and then another one loads what another process reads.
"""
