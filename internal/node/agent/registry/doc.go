// Package registry finds plugins by their sockets in a folder, plugins_registry, as the kubelet's
// plugin watcher does (API pluginregistration v1). A socket there says of which type the plugin is,
// what it is called, and where it serves; whoever handles that type takes it or not, and the plugin
// is told. CSI drivers register this way, device plugins can.
//
// The sockets are the state: after a restart of the agent all plugins are found again, and a plugin
// that is restarted makes its socket anew. One that does not answer is asked again, less and less
// often, and delays no other.
package registry
