// Package hostile generates what one tenant may store, for tests of what it costs everybody else.
//
// [Kinds] are the kinds that the ClusterRole edit lets a tenant write in a namespace, and that
// Berth reads. [Paths] finds, by reflection, every field of such a kind that may be of any length:
// text, lists and maps. A [Generator] makes objects in which one of these fields is as long as
// there is room for, and the others are empty or short. A field that a later version of the API
// adds is found without a change here.
package hostile
