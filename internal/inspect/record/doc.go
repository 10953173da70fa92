// Package record keeps what a live cluster was like, for the commands that ask questions off line:
// a folder with the objects of all kinds that decisions depend on, and what changed while the
// recording ran.
//
// It only reads from the cluster, never secrets, page by page; what it writes is bounded in size,
// and a recording that was interrupted goes on where it is started again. The folder is read
// wherever manifests are.
package record

// IndexFile is the file that makes a folder a recording.
const IndexFile = "recording.index"
