// Package record stores the state of a live cluster for the commands that answer questions offline:
// a folder with the objects of all kinds that decisions depend on, and their changes while the
// recording ran.
//
// It only reads from the cluster, in pages, and never reads secrets. What it writes is bounded in
// size, and an interrupted recording continues when it is started again. The folder can be read
// wherever manifests can.
package record

// IndexFile is the file by which a folder is recognised as a recording.
const IndexFile = "recording.index"
