"""Writes 62 clips of speech, noise, music and silence, of 4 seconds to 10 minutes, and what is spoken in them.

    python bench/transcription/clips.py FOLDER

FOLDER gets WAV files with 16 kHz and spoken.json. Needs espeak-ng and sox. The same versions of both give the same samples.
"""

import json
import pathlib
import subprocess
import sys

STORY = """The harbour was quiet in the early morning and only a few gulls moved over the water. A small boat with a red sail came around the point and turned towards the pier.
The keeper of the light had watched it for an hour. He wrote the time into his book, closed the window, and walked down the long stairs to meet the visitors.
They brought letters, two sacks of flour, and news from the town. The bridge had been repaired, the school had a new teacher, and the price of coal had risen again.
In the afternoon the wind changed. Clouds came from the west, and by four o'clock it was so dark that he lit the lamp. The boat stayed at the pier that night.
After dinner they played cards and told stories about ships that were never found. At midnight the rain stopped, and the stars came out over the sea.
In nineteen sixty nine people walked on the moon for the first time. Engineers measure temperature in degrees, pressure in pascals, and energy in joules.
The meeting begins at half past nine on Thursday. Please bring the report, the budget for next year, and a list of open questions about the new building.""".split("\n")
HARBOUR = """Der Hafen lag still in der Morgensonne, und nur wenige Moewen flogen ueber das Wasser. Ein kleines Boot mit einem roten Segel kam um die Spitze.
Der Waerter des Leuchtturms hatte es seit einer Stunde beobachtet. Er schrieb die Zeit in sein Buch und ging die lange Treppe hinunter.""".split("\n")
ENGLISH = [
    "The train to the capital leaves at seven fifteen from platform nine.",
    "Please remember to water the plants in the kitchen while we are away for two weeks.",
    "The museum opens at ten in the morning and closes at six in the evening, except on Mondays.",
    "My sister bought a bicycle with three wheels because she carries vegetables to the market every day.",
    "Doctor Martin said that the results of the test would arrive before the end of the month.",
    "In eighteen twenty five the first public railway carried passengers between two towns in England.",
    "The recipe needs four eggs, two hundred grams of sugar, some butter, and a little salt.",
    "We walked along the river for an hour, crossed the old stone bridge, and had lunch under the trees.",
    "The children asked why the sky is blue, and their teacher explained how light is scattered by the air.",
    "A new library will be built next to the town hall, with room for eighty thousand books.",
    "The storm damaged several roofs, but nobody was hurt, and the power returned in the afternoon.",
    "Could you tell me how to get to the station? Turn left at the church, then walk straight on.",
    "The engineer measured the voltage twice and found that one of the wires was broken.",
    "Yesterday the company announced that it will hire two hundred people in the coming year.",
    "He opened the letter slowly, read it once, and put it back into the drawer without a word.",
    "The orchestra played the second symphony, and the audience stood up and clapped for ten minutes.",
]
GERMAN = [
    "Der Zug in die Hauptstadt fährt um sieben Uhr fünfzehn von Gleis neun ab.",
    "Bitte denken Sie daran, die Pflanzen in der Küche zu gießen, während wir zwei Wochen weg sind.",
    "Das Museum öffnet um zehn Uhr und schließt um achtzehn Uhr, außer am Montag.",
    "Wir gingen eine Stunde am Fluss entlang, überquerten die alte Brücke und aßen unter den Bäumen.",
    "Die Kinder fragten, warum der Himmel blau ist, und ihre Lehrerin erklärte es ihnen.",
    "Neben dem Rathaus wird eine neue Bibliothek mit Platz für achtzigtausend Bücher gebaut.",
]
VOICES = ["en-us", "en-gb", "en-us+f3", "en-gb+m3", "en-us+m7", "en-us+f2"]

folder = pathlib.Path(sys.argv[1])
spoken = {}


def sox(*arguments):
    subprocess.run(["sox", "-R", *map(str, arguments)], check=True, cwd=folder)


def say(name, texts, voice, speed, pitch=50):
    text = " ".join(texts)
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", "speech.wav", text]
    subprocess.run(command, check=True, cwd=folder)
    sox("speech.wav", "-r", 16000, "-c", 1, "-b", 16, "-D", f"{name}.wav")
    spoken[name] = text


def change(name, source, *effects):
    sox(f"{source}.wav", f"{name}.wav", *effects)
    spoken[name] = spoken[source]


def mix(name, source, *sound):
    """Adds a synthetic sound."""
    sox(f"{source}.wav", "sound.wav", "synth", *sound)
    sox("-m", f"{source}.wav", "sound.wav", f"{name}.wav")
    spoken[name] = spoken[source]


def join(name, *sources, seconds=None):
    sox(*(f"{source}.wav" for source in sources), f"{name}.wav", *(["trim", 0, seconds] if seconds else []))
    spoken[name] = " ".join(filter(None, (spoken[source] for source in sources)))


def sound(name, *effects, rate=16000):
    """A sound without speech."""
    sox("-n", "-r", rate, "-c", 1, "-b", 16, "sound.wav", *effects)
    sox("sound.wav", "-r", 16000, f"{name}.wav")
    spoken[name] = ""


def main():
    folder.mkdir(parents=True, exist_ok=True)
    for place, text in enumerate(STORY):
        say(f"short{place}", [text], ["en-us", "en-gb", "en-us+f3"][place % 3], 140 + 10 * place)
    for place, text in enumerate(ENGLISH[:12]):
        say(f"en{place:02}", [text], VOICES[place % 6], 135 + 7 * (place % 7), 40 + 4 * (place % 5))
    for place, text in enumerate(GERMAN):
        say(f"de{place}", [text], ["de", "de+f3", "de+m3"][place % 3], 130 + 8 * place)
    say("long1", STORY, "en-us", 150)
    say("long2", STORY[::-1], "en-gb", 165)
    say("german", HARBOUR, "de", 150)
    say("germanlong", HARBOUR * 2, "de", 160)
    say("mid1", ENGLISH[:6], "en-us", 150)
    say("mid2", ENGLISH[6:12], "en-gb+m3", 160)
    say("mid3", ENGLISH[10:], "en-us+f3", 170)
    say("midde", GERMAN, "de", 145)
    say("three", ENGLISH * 2 + ENGLISH[3:9], "en-us", 155)
    say("five", (ENGLISH + ENGLISH[::-1]) * 2, "en-gb", 150)
    for name, source, kind, volume in [
        ("noisy1", "short2", "whitenoise", 0.03), ("noisy2", "long1", "whitenoise", 0.05), ("midnoise", "mid2", "whitenoise", 0.03),
        ("white1", "en00", "whitenoise", 0.02), ("white2", "en03", "whitenoise", 0.1), ("white3", "de1", "whitenoise", 0.05),
        ("pink1", "en05", "pinknoise", 0.1), ("pink2", "de3", "pinknoise", 0.2), ("brown1", "en07", "brownnoise", 0.3),
    ]:
        mix(name, source, kind, "vol", volume)
    mix("under1", "en02", "sine", 220, "vol", 0.1)
    mix("under2", "en08", "triangle", 330, "sine", "amod", 3, "vol", 0.1)
    for name, source, effects in [
        ("echo", "en01", "reverb 60"), ("phone", "en04", "highpass 300 lowpass 3400"), ("phonede", "de4", "highpass 300 lowpass 3400"),
        ("quiet", "en06", "vol 0.01"), ("clipped", "en09", "gain 25"), ("fast", "en10", "tempo 1.4"), ("slow", "en11", "tempo 0.75"),
        ("pad", "short0", "pad 8 35"),
    ]:
        change(name, source, *effects.split())
    sound("silence", "trim", 0, 20)
    sound("whitenoise", "synth", 10, "whitenoise", "vol", 0.1)
    sound("music", *"synth 12 sine 440 sine 554 sine 659 remix - vol 0.3".split())
    sound("sweep", "synth", 35, "sine", "100:4000", "vol", 0.3)
    sound("plucks", *"synth 15 pluck C3 pluck E3 pluck G3 remix - vol 0.5".split(), rate=44100)
    join("gap", "short3", "silence", "silence", "short4")
    change("gap1", "en00", "pad", 0, 4)
    change("gap2", "en03", "pad", 0, 12)
    join("gaps2", "gap1", "gap2", "de2")
    join("ten", "three", "five", "mid3", seconds=600)
    for name in ("speech", "sound", "gap1", "gap2"):
        (folder / f"{name}.wav").unlink()
        spoken.pop(name, None)
    # The end of the last sentence is cut off.
    del spoken["ten"]
    (folder / "spoken.json").write_text(json.dumps(spoken, ensure_ascii=False))


main()
