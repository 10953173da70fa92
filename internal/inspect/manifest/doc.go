// Package manifest reads Kubernetes manifests for the commands that work offline: files, folders
// and standard input; YAML, JSON, several documents, Lists as kubectl prints them. It is as strict
// as the API server, reports the line, the field, the value and what is allowed, and sets the API
// server's defaults. Kinds that Berth does not use are counted.
//
// A file with a whole cluster is read in seconds and in bounded memory: the stream is cut into
// objects by lines, several workers read the objects, and a parser for the YAML that programs print
// (block.go) precedes the library, which reads the rest. Set.Expand then creates the pods of
// Deployments and other workloads, as their controllers would.
package manifest
