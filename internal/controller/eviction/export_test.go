package eviction

// Safeguards names what a test can break, to show that something else notices.
var Safeguards = []string{"UID", "live read", "retry", "timeAdded", "note", "witness", "device read"}

// Break takes one safeguard out of a Core.
func (c *Core) Break(safeguard string) *Core {
	switch safeguard {
	case "UID":
		c.broke.noUID = true
	case "live read":
		c.broke.noLiveRead = true
	case "retry":
		c.broke.noRetry = true
	case "timeAdded":
		c.broke.noTimeAdded = true
	case "note":
		c.broke.noNote = true
	case "device read":
		c.broke.noDeviceRead = true
	case "witness":
		c.broke.noWitness = true
	default:
		panic("no such safeguard: " + safeguard)
	}
	return c
}
