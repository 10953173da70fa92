// Package objects provides the ConfigMaps and Secrets that the pods of a node refer to, as the API
// currently has them.
//
// Each object in use has a watch of its own, for which a node's credentials suffice. An immutable
// one is not read again. When an object is created, changed or deleted, its pods are reported, so
// that a pod that waits for a ConfigMap continues at once, and a running pod sees a change within a
// moment rather than a minute.
package objects
