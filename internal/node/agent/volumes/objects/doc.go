// Package objects has the configMaps and secrets that the pods of a node refer to, as the API shows
// them now.
//
// Each object that is in use is watched by itself, for which a node's credentials suffice; one that
// is immutable is not asked for again. When an object comes, changes or goes, the pods that use it
// are named, so that a pod which waits for a configMap goes on at once when it is there, and what a
// running pod is shown follows in a moment, not after a minute.
package objects
