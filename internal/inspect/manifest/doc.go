// Package manifest reads Kubernetes manifests for the commands that work off
// line: files, folders and standard input; YAML, JSON, several documents,
// Lists as kubectl prints them. It is as strict as the API server, names the
// line, the field, the value and what is allowed, and fills in what the API
// server would default. Kinds that Berth has no use for are counted.
//
// A file of a whole cluster is read in seconds and in bounded memory: the
// stream is cut into objects by lines, the objects are read by several
// workers, and a parser for the YAML that programs print (block.go) stands
// before the library, which reads the rest. Set.Expand then makes the pods of
// Deployments and the other workloads, as their controllers would.
package manifest
