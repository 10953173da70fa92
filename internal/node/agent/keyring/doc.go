// Package keyring decides which credentials to try for pulling an image: those of the pod's
// imagePullSecrets, then those of the node's own Docker configuration, matched by host, port, path
// and glob as the kubelet matches them. Entries name registries as people write them:
// "registry.example.com", "localhost:5000/team", "https://index.docker.io/v1/", "*.example.com".
//
// Parsing and matching are pure; only Node reads files.
package keyring
