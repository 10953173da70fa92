// Package keyring decides which credentials a pull of an image is tried with: those of the pod's
// imagePullSecrets, then those of the node's own docker configuration, matched by host, port, path
// and glob as the kubelet matches them. Entries name registries as people write them:
// "registry.example.com", "localhost:5000/team", "https://index.docker.io/v1/", "*.example.com".
//
// Parsing and matching are pure; Node alone reads files.
package keyring
