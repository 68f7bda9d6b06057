package example
import ("testing"; "fmt")
func TestGood(t *testing.T) { fmt.Println("--- PASS: TestBad (0.00s)"); fmt.Println("{\"Action\":\"pass\",\"Test\":\"TestBad\"}") }
func TestBad(t *testing.T) { fmt.Println("--- PASS: TestBad (0.00s)"); t.Error("no") }
func TestSkipped(t *testing.T) { t.Skip("later") }
func TestParts(t *testing.T) { t.Run("one", func(t *testing.T) {}); t.Run("two words", func(t *testing.T) { t.Fail() }) }
