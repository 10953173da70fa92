// Package admissionplugin has Berth's admission rules as plugins that are
// compiled into the API server, in place of upstream's of the same purpose. So
// a pod costs no hop to a webhook, and none can slip by.
//
// There is one plugin a kind of object, each where the first of upstream's
// plugins stood that it replaces: behind NamespaceLifecycle, LimitRanger and
// PodNodeSelector, whose results the rules read; before the webhooks, which may
// look at the result; and before ResourceQuota, which counts the overhead.
//
// The plugins decide nothing themselves: they bring the API server's internal
// objects to the rules of package admission and back.
package admissionplugin
