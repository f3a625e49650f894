"""The server: a model behind HTTP, in TensorFlow Serving's REST contract and the v2 inference protocol.

From the socket to the model and back:

  connections        sockets of clients, and the allowed web pages
  handlers           requests: headers are checked first, then the body, then the answer
  protocols          REST and v2: bodies to checked calls of a signature, results to bodies; no HTTP
  batcher            queue of the calls of all clients; a thread takes as many as fit into a batch
  reading            a version's files, read in a separate process
  versions           the served version; a newer one replaces it once it is loaded
  monitoring         metrics and log lines
  application        start and stop of the whole server

The event loop answers, one thread computes, and sometimes another one loads a version that a process reads.
"""
