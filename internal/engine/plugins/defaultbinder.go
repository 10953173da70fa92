package plugins

// DefaultBinder has the scheduler itself bind the pod. It never passes.
type DefaultBinder struct{}

// Name returns the plugin's name.
func (DefaultBinder) Name() string { return "DefaultBinder" }

// OwnBinder is a plugin at Bind that has the scheduler itself bind the pod.
type OwnBinder interface{ BindsItself() }

// BindsItself implements [OwnBinder].
func (DefaultBinder) BindsItself() {}
