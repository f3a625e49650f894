"""The server: a model behind HTTP, in TensorFlow Serving's REST contract and the v2 inference protocol.

From the socket to the model and back:

  connections        sockets of clients, which may end their writing and wait for the answer
  callers            which pages may ask, by which names of the server
  handlers           requests: headers are checked first, then the body, then the answer
  rest, v2           the two protocols: bodies to calls, results to bodies; no HTTP
  calls              a call of a signature: checked inputs, outputs as columns
  batcher            calls of all clients wait here; a thread takes as many as fit into a batch
  served             a version of the model, which computes a batch
  reading            a version's files, read in a process of its own
  versions           which versions there are; a newer one is loaded beside the old one and takes its place
  metrics, logs      what happens, in numbers and in lines
  application        all of them together: start and stop

The event loop answers, one thread computes, and now and then another one loads what another process reads.
"""
