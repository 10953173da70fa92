// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package manifest reads Kubernetes manifests for the offline commands: files, folders and standard
// input; YAML, JSON, several documents, Lists as printed by kubectl. It is as strict as the API
// server, reports the line, the field, the value and the allowed values of each fault, and sets the
// API server's defaults. It counts the objects of kinds unused by Berth.
//
// A file with a whole cluster is read in seconds and in bounded memory: the stream is cut into
// objects by lines, and several workers read the objects. A fast parser reads machine-written YAML
// (block.go), and a YAML library reads the rest (library.go). Set.Expand then creates the pods of
// Deployments and other workloads, like their controllers.
package manifest
