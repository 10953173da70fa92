package eviction

// Safeguards names what a test can break, to show that something else notices.
var Safeguards = []string{"UID", "live read", "retry", "timeAdded", "note", "witness", "device read"}

// Break takes one safeguard out of a Core.
func (c *Core) Break(safeguard string) *Core {
	switch safeguard {
	case "UID":
		c.breakSafeguards.noUID = true
	case "live read":
		c.breakSafeguards.noLiveRead = true
	case "retry":
		c.breakSafeguards.noRetry = true
	case "timeAdded":
		c.breakSafeguards.noTimeAdded = true
	case "note":
		c.breakSafeguards.noNote = true
	case "device read":
		c.breakSafeguards.noDeviceRead = true
	case "witness":
		c.breakSafeguards.noWitness = true
	default:
		panic("no such safeguard: " + safeguard)
	}
	return c
}
